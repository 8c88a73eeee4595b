"""A dealer that deals: what it sees, what leaves it, and who answers for it."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sottovoce as sv
from processes import Program
from secure_fits import NOTARY, Watched, by_columns, by_rows, data, model
from sottovoce import algorithms
from sottovoce.errors import InputError, RefusedError, WireError
from sottovoce.federation import training
from sottovoce.federation.secure_columns import dealer
from sottovoce.federation.secure_columns.coordinator import Stage, place_of
from sottovoce.federation.secure_columns.dealer import Dealer, LocalDeals
from sottovoce.gate.frames import Frame, decode, encode
from sottovoce.gate.outgoing import declare_public
from sottovoce.queries.pricing import queries_of
from sottovoce.secure import streams, sums
from sottovoce.secure.columns import dealt_like
from sottovoce.secure.pair_keys import fingerprint_of
from sottovoce.secure.streams import TranscriptHash, add_fields, pack_fields, stream_fields, unpack_fields
from sottovoce.secure.sums import Opener, packed_envelope, unpacked_envelope
from sottovoce.transports.authority import create_authority, issue
from sottovoce.transports.certificates import Credentials, pin_in
from sottovoce.transports.grpc_party import serve_party
from sottovoce.transports.grpc_wire import GrpcCoordinator
from sottovoce.transports.identity import PLAN

MAKE = {"columns": by_columns, "rows": by_rows}


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The sums that a coordinator opens, without noise."""
    found: list[Any] = []
    whole = Opener.open

    def watched(self: Opener, *arguments: Any) -> Any:
        found.append(whole(self, *arguments))
        return found[-1]

    def none(scale: Any, size: int, randomness: Any) -> Any:
        return np.zeros(size, dtype=np.int64)

    monkeypatch.setattr(Opener, "open", watched)
    for module in (sums, dealer):
        monkeypatch.setattr(module, "wide_gaussian", none)
    return found


@pytest.mark.parametrize("split", MAKE)
def test_sums_are_those_that_a_coordinator_has_that_deals_itself(split: str, opened: list[Any]) -> None:
    """To the last bit; by columns within what rows and slopes are rounded by, at random."""
    alone = model().fit(MAKE[split]())
    grams = [opened[0]]
    opened.clear()
    helped = model().fit(MAKE[split](dealer=Dealer(NOTARY)))
    grams.append(opened[0])
    np.testing.assert_allclose(*grams, atol=0.0 if split == "rows" else 2.0**-4)  # 60 products of 8 bits
    assert (alone.plan_.aggregation.dealer, helped.plan_.aggregation.dealer) == ("coordinator", NOTARY)
    assert [name for name, _ in helped.plan_.keys] == ["a", "b", "c", NOTARY]
    if split == "rows":
        np.testing.assert_array_equal(alone.coef_, helped.coef_)


@pytest.mark.parametrize("split", MAKE)
def test_a_dealer_is_told_public_numbers_and_deals_boxes(split: str) -> None:
    wire = Watched(federation := MAKE[split](dealer=Dealer(NOTARY)))
    fitted = model().fit(federation)
    queries = {release.query for release in fitted.plan_.releases}
    kinds = {said.kind for name, said, _ in wire.passed if name == NOTARY}
    assert kinds == {"hello", "plan", "secure" if split == "columns" else "ask", "done"}
    for said, reply in wire.of(NOTARY, "secure") + wire.of(NOTARY, "ask"):
        assert said.query in queries | {""}  # of the set-up
        assert set(said.arrays) <= {"weights", "level", "chances"}
        names = set(reply.arrays)
        assert names == {"share"} if split == "rows" else len(names) == 1
    assert federation.names == ("a", "b", "c")
    assert set(federation.coordinator().facts(classes=False)) == {"a", "b", "c"}
    assert fitted.communication_.uplink_bytes < wire.communication.uplink_bytes  # what was dealt is not the parties'
    assert sum(fitted.communication_.uplink.values()) < fitted.communication_.uplink_bytes
    assert federation.aggregation() is not None
    assert federation.aggregation().colluding == 2  # type: ignore[union-attr]


class Recorded:
    """Who drew noise, and how wide."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.drawn: list[tuple[Any, float]] = []
        whole = sums.wide_gaussian

        def watched(scale: Any, size: int, randomness: Any) -> Any:
            self.drawn.append((randomness, float(np.max(scale))))
            return whole(scale, size, randomness)

        monkeypatch.setattr(sums, "wide_gaussian", watched)
        monkeypatch.setattr(dealer, "wide_gaussian", watched)


@pytest.mark.parametrize("split", MAKE)
def test_the_dealer_tops_up_and_the_coordinator_does_not(split: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each sum the dealer draws tau = 2/3 of the variance, each party 1/3, and nobody else anything."""
    recorded = Recorded(monkeypatch)
    federation = MAKE[split](dealer=Dealer(NOTARY))
    model(solver="gradient", fit_intercept=False, insecure_seed=1).fit(federation)
    owners = {id(end.randomness): end.name for end in federation._ends}
    drawn: dict[str, list[float]] = {}
    for randomness, scale in recorded.drawn:
        drawn.setdefault(owners[id(randomness)], []).append(scale)
    assert {name: len(each) for name, each in drawn.items()} == dict.fromkeys(("a", "b", "c", NOTARY), 2)
    np.testing.assert_allclose(np.square(drawn[NOTARY]) / np.square(drawn["a"]), 2.0)


def requests(federation: sv.Federation, dealer: Dealer, **fit: Any) -> tuple[list[bytes], Dealer]:
    """All that the dealer was sent in a fit, as bytes; and the dealer, in the middle of that run."""
    sent: list[bytes] = []
    whole = dealer.handle
    dealer.handle = lambda request: (sent.append(request), whole(request))[1]  # type: ignore[method-assign]
    model(**fit).fit(federation)
    dealer.handle = whole  # type: ignore[method-assign]
    return sent, dealer


class Ended(Dealer):
    """A dealer that goes on where a run is over."""

    def _answer(self, frame: Frame) -> Any:
        if frame.kind != "done":
            return super()._answer(frame)
        run = self._run
        answer = super()._answer(frame)
        self._run = run
        return answer


@pytest.mark.parametrize(("split", "kind"), [("columns", "secure"), ("rows", "ask")])
def test_what_is_dealt_has_one_content(split: str, kind: str) -> None:
    dealer = Ended(NOTARY)
    wire = Watched(federation := MAKE[split](dealer=dealer))
    sent, _ = requests(federation, dealer)
    asked = [request for request in sent if decode(request).kind == kind]
    first = [reply.arrays for _, reply in wire.of(NOTARY, kind)]
    for request, arrays in zip(asked, first, strict=True):
        again = decode(dealer.handle(request).data).arrays
        assert {name: array.tobytes() for name, array in again.items()} == {
            name: array.tobytes() for name, array in arrays.items()
        }
    said = decode(asked[-1])
    weights = np.asarray(said.arrays["weights"]) + 1.0
    other = encode(Frame(kind, 9, said.plan, said.round, said.query, {**said.arrays, "weights": weights}, said.text))
    answer = decode(dealer.handle(other).data)
    assert answer.kind == "refuse"
    assert "told other numbers" in answer.text or "something else was masked" in answer.text


def test_a_look_up_is_cut_as_the_plan_has_it() -> None:
    """Another cut would have its own labels, and its own noise on the same sum."""
    dealer = Ended(NOTARY)
    sent, _ = requests(by_columns(dealer=dealer), dealer)
    said = decode(sent[-2])
    stage = Stage.read(said.text)
    assert stage.program == "look-up"
    cut = stage._replace(piece=(stage.piece[0], stage.piece[1] - 1)).text
    answer = decode(dealer.handle(encode(Frame("secure", 9, said.plan, said.round, said.query, said.arrays, cut))).data)
    assert "as the plan has them cut" in answer.text
    for program, query in (("own", said.query), ("gram", said.query), ("look-up", "gram"), ("null", said.query)):
        arrays = {} if query == "gram" else said.arrays
        number, text = 0 if query == "gram" else said.round, stage._replace(program=program).text
        asked = Frame("secure", 9, said.plan, number, query, arrays, text)
        answer = decode(dealer.handle(encode(asked)).data)
        assert "nothing is said or dealt" in answer.text
    say = Frame("secure", 9, said.plan, said.round, said.query, said.arrays, stage._replace(name="say").text)
    assert "has no stage 'say'" in decode(dealer.handle(encode(say)).data).text


def masks_seen(wire: Watched, federation: sv.Federation, fitted: Any, seeds: dict[str, bytes]) -> Iterator[Any]:
    """What passes the coordinator of the masks of bits, without the streams of two parties, as if it were one."""
    plan, transcript = fitted.plan_, TranscriptHash()
    query = next(release.query for release in plan.releases)
    gradient = queries_of(algorithms.of(plan), plan, plan.names[0])[query]
    place = place_of(plan, plan.names[0])
    for said, reply in wire.of(NOTARY, "secure"):
        stage = Stage.read(said.text)
        if stage.program != "look-up":
            continue
        asked = transcript.after(said.query, said.round, said.arrays)
        ((receiver, words),) = reply.arrays.items()
        like = dealt_like("look-up", stage.piece, place, gradient.lookup(said.arrays))
        raw = unpacked_envelope(words)
        dealt = unpack_fields(raw[: len(pack_fields(like, place.bits))], like, place.bits)
        for other in plan.names:
            if other != plan.names[int(receiver)]:
                label = asked.label("look-up dealt", stage.piece)
                dealt = add_fields(dealt, stream_fields(seeds[other], label, like))
        yield dealt[1] % 2**place.bits


@pytest.mark.parametrize("enveloped", [True, False])
def test_who_passes_on_what_is_dealt_reads_nothing(enveloped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the seeds of two of three parties. Without envelopes masks of bits are bits: what is looked up is read."""
    maskers: dict[str, sums.ColumnMasker] = {}
    whole = sums.ColumnMasker.__init__

    def watched(self: Any, plan: Any, name: str, keys: Any) -> None:
        whole(self, plan, name, keys)
        maskers[name] = self

    monkeypatch.setattr(sums.ColumnMasker, "__init__", watched)
    if not enveloped:
        monkeypatch.setattr(
            LocalDeals,
            "_enveloped",
            lambda self, receiver, label, words: packed_envelope(pack_fields(words, place_of(self._plan, "a").bits)),
        )
        monkeypatch.setattr(
            sums.ColumnMasker,
            "dealt",
            lambda self, label, words, like: unpack_fields(unpacked_envelope(words), like, self.bits),
        )
    wire = Watched(federation := by_columns(dealer=Dealer(NOTARY)))
    fitted = model(solver="gradient").fit(federation)
    seeds = {name: masker.seed for name, masker in maskers.items()}
    found = list(masks_seen(wire, federation, fitted, seeds))
    assert len(found) == 2
    for words in found:
        read = (words == 0) | (words == 1)
        assert read.all() if not enveloped else not read.any()  # by chance one of 60 with a chance below 1e-7


class Liar(Watched):
    """A coordinator that tells one end another number than the others, in one array of one query."""

    def __init__(self, federation: sv.Federation, who: str, query: str, array: str) -> None:
        super().__init__(federation)
        self._about = who, query, array

    def exchange(self, messages: Any) -> Any:
        """Pass them on, changed."""
        return super().exchange({name: self._changed(name, message) for name, message in messages.items()})

    def _changed(self, name: str, message: bytes) -> bytes:
        frame, (who, query, array) = decode(message), self._about
        if name != who or frame.query != query or array not in frame.arrays:
            return message
        told = np.array(frame.arrays[array])
        if told.dtype.kind == "i":
            told.flat[0] = told.flat[0] - 1 if told.flat[0] > 0 else told.flat[0] + 1
        else:
            told.flat[0] = told.flat[0] * (1 - 2.0**-20) - 2.0**-30
        arrays = {**frame.arrays, array: told}
        return encode(Frame(frame.kind, frame.serial, frame.plan, frame.round, frame.query, arrays, frame.text))


NOT_OPENED = "a secure message was altered"


def told_to_helper(solver: str) -> set[tuple[str, str]]:
    """What a dealer is told in an honest run: (query, array)."""
    wire = Watched(federation := by_columns(dealer=Dealer(NOTARY)))
    model(solver=solver).fit(federation)
    return {(said.query, name) for said, _ in wire.of(NOTARY, "secure") for name in said.arrays}


@pytest.mark.slow
@pytest.mark.parametrize("who", [NOTARY, "a", "b"])
@pytest.mark.parametrize("solver", ["newton", "whitened"])
def test_nothing_opens_for_who_was_told_other_numbers(solver: str, who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever number an end is told otherwise: an envelope does not open, and that sum is not opened."""
    sums_opened: list[str] = []
    whole = Opener.open

    def watched(self: Opener, shares: Any, noise: Any, label: Any) -> Any:
        sums_opened.append(label[1])
        return whole(self, shares, noise, label)

    monkeypatch.setattr(Opener, "open", watched)
    told = told_to_helper(solver)
    assert {"weights", "level", "chances"} <= {array for _, array in told}
    assert (solver == "whitened") == ("projection" in {array for _, array in told})
    for query, array in sorted(told):
        Liar(federation := by_columns(dealer=Dealer(NOTARY)), who, query, array)
        sums_opened.clear()
        with pytest.raises(RefusedError, match=f"{NOT_OPENED}|told other numbers before|needs '{array}'"):
            model(solver=solver).fit(federation)
        assert query not in sums_opened


def test_a_label_without_what_was_told_lets_the_dealer_be_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: the table is then for other chances than everybody was told, and nobody notices."""
    monkeypatch.setattr(streams, "hash_of", lambda told: "")
    Liar(federation := by_columns(dealer=Dealer(NOTARY)), NOTARY, "gradient", "chances")
    model().fit(federation)


class Careless(Dealer):
    """It signs no plan."""

    def _accept(self, frame: Frame) -> Any:
        return super()._accept(frame)[:1]


class Forger(Dealer):
    """It signs another plan."""

    def _accept(self, frame: Frame) -> Any:
        accepted, *signed = super()._accept(frame)
        if not signed or self._identity is None:
            return (accepted,)
        wrong = self._identity.sign(PLAN, bytes(32))
        return accepted, declare_public("signature", wrong, reason="a test")


@pytest.mark.parametrize("split", MAKE)
@pytest.mark.parametrize("kind", [Careless, Forger])
def test_parties_start_once_the_dealer_has_signed(
    split: str, kind: type[Dealer], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RefusedError, match=f"signature of {NOTARY}"):
        model().fit(MAKE[split](dealer=kind(NOTARY)))
    for module in (training, dealer):  # negative control: nobody looks
        monkeypatch.setattr(module, "check_start", lambda plan, own, identity, text: None)
    model().fit(MAKE[split](dealer=kind(NOTARY)))


def test_a_dealer_has_a_name_of_its_own() -> None:
    with pytest.raises(InputError, match="dealer='b' has the name of a party"):
        by_columns(dealer=Dealer("b"))
    with pytest.raises(InputError, match="no name of a dealer"):
        Dealer("coordinator")
    with pytest.raises(InputError, match="take 'secure'"):
        by_columns(dealer=Dealer(NOTARY), products="none")
    with pytest.raises(InputError, match="not on the wire"):
        sv.Federation.connect(by_rows().transport, sums="secure", dealer=NOTARY)


@pytest.mark.parametrize("split", MAKE)
def test_a_plan_is_dealt_for_once_and_by_whom_it_names(split: str) -> None:
    federation = MAKE[split](dealer=(dealer := Dealer(NOTARY)))
    sent, _ = requests(federation, dealer)
    proposed = next(request for request in sent if decode(request).kind == "plan" and decode(request).query == "")
    for end in (dealer, Dealer(NOTARY)):  # at the end of a run its keys are gone
        assert "does not have the key" in decode(end.handle(proposed).data).text
    assert "does not name other as its dealer" in decode(Dealer("other").handle(proposed).data).text
    asked = encode(Frame("predict", 3, decode(proposed).plan))
    assert "has no records" in decode(dealer.handle(asked).data).text


@pytest.mark.parametrize("split", MAKE)
def test_a_dealer_that_was_stopped_ends_the_run(split: str) -> None:
    dealer = Dealer(NOTARY)
    whole, count = dealer._answer, 0

    def stopped(frame: Frame) -> Any:
        nonlocal count
        count += frame.kind in ("secure", "ask")
        if count == 2 and dealer._run is not None:
            dealer._run, dealer._keys = None, Dealer(NOTARY)._keys
        return whole(frame)

    dealer._answer = stopped  # type: ignore[method-assign]
    with pytest.raises((WireError, RefusedError), match=r"stays charged"):
        model().fit(MAKE[split](dealer=dealer))


def test_the_signatures_of_a_start_are_read_as_they_are() -> None:
    """Whatever comes in their place is a refusal."""
    dealer = Ended(NOTARY)
    sent, _ = requests(by_rows(dealer=dealer), dealer)
    started = next(decode(request) for request in sent if decode(request).query == "start")
    for text in ("", "[]", json.dumps({"a": 1}), json.dumps({**json.loads(started.text), "b": "none"})):
        answer = decode(dealer.handle(encode(Frame("plan", 5, started.plan, 0, "start", {}, text))).data)
        assert answer.kind == "refuse"
        assert "signature of" in answer.text


@pytest.mark.slow
def test_the_command_serves_a_dealer(tmp_path: Path) -> None:
    """By rows, over TLS: the dealer a process of the command line, the parties in threads."""
    create_authority(tmp_path)
    for name in ("coordinator", "a", "b", NOTARY):
        issue(tmp_path, name)
    with contextlib.closing(
        GrpcCoordinator("localhost:0", ("a", NOTARY, "b"), Credentials.load(tmp_path, "coordinator"), timeout=30.0)
    ) as wire:
        address = f"localhost:{wire.port}"
        (tmp_path / "notary.toml").write_text(
            f'[dealer]\nname = "{NOTARY}"\n[federation]\ncoordinator = "{address}"\ncertificates = "."\n'
        )
        dealer = Program("-m", "sottovoce", "dealer", "--job", tmp_path / "notary.toml", "--once", read=True)
        X, y = data()
        pins = dict(pin_in(tmp_path / f"{name}.pem") for name in ("a", "b", NOTARY))
        for name, rows in (("a", slice(0, 30)), ("b", slice(30, 60))):
            party = sv.Party(name, X[rows], y[rows], policy=sv.Policy(secure=True))
            arguments = (party, address, Credentials.load(tmp_path, name))
            threading.Thread(target=serve_party, args=arguments, kwargs={"pins": pins}, daemon=True).start()
        wire.wait_for_parties(30)
        fitted = model().fit(sv.Federation.connect(wire, sums="secure", dealer=NOTARY))
        assert fitted.plan_.names == ("a", "b")
        assert [name for name, _ in fitted.plan_.keys] == ["a", "b", NOTARY]
        said = dealer.communicate(20)[0]
    assert dealer.returncode == 0, said
    assert "without records" in said


@pytest.mark.parametrize("split", MAKE)
def test_a_plan_of_more_columns_than_a_message_has_is_refused_before_anything_is_made_of_it(
    split: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dealer = Dealer(NOTARY)
    plan = model().fit(MAKE[split](dealer=dealer)).plan_
    hello = Frame("hello", 1, query="secure", text=json.dumps({"run": plan.run, "members": []}))
    own = json.loads(decode(dealer.handle(encode(hello)).data).text)["public_key"]
    wide = {"features": 12_000, "keys": (*plan.keys[:-1], (NOTARY, fingerprint_of(own)))}
    wide |= {"columns": (11_997, 2, 1)} if plan.columns else {}
    large = plan.model_copy(update=wide)
    monkeypatch.setattr(np, "triu_indices", lambda size: pytest.fail(f"{size} x {size} places were made"))
    asked = Frame("plan", 2, large.digest, 0, "check", {}, large.to_json())
    assert "a message has at most" in json.loads(decode(dealer.handle(encode(asked)).data).text)["refused"]
