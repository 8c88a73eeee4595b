"""Keys of pairs: what both ends agree on, that either of two problems keeps it secret, and what is refused."""

from __future__ import annotations

import ast
import hashlib
import hmac
import itertools
import json
import pickle
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

import sottovoce as sv
from pairing import RUN, agreed, members_of, prints_of, publics_of
from sottovoce.errors import RefusedError, WireError
from sottovoce.federation.party import Party
from sottovoce.federation.replies import crossed_offers
from sottovoce.gate.frames import Frame, decode, encode
from sottovoce.secure import pair_keys
from sottovoce.secure.pair_keys import OFFER, OFFERS, PUBLIC, PUBLIC_KEYS, PairKeys, RunKey, fingerprint_of, packed_rows
from sottovoce.secure.streams import masks
from sottovoce.transports.base import InProcess
from sottovoce.transports.identity import local_identities
from summing import data_of, made

NAMES = ("a", "b", "c")
SOURCE = Path(sv.__file__).parent


def some_keys(names: tuple[str, ...] = NAMES) -> dict[str, RunKey]:
    return {name: RunKey(bytes([place]) * 32) for place, name in enumerate(names)}


# What a key of a pair is, once more, from the primitives alone.


def derived(secret: bytes, label: list[Any], length: int = 32) -> bytes:
    info = json.dumps(["sottovoce", *label], separators=(",", ":")).encode() + b"\n"
    return HKDF(hashes.SHA256(), length=length, salt=None, info=info).derive(secret)


def halves(key: RunKey) -> tuple[X25519PrivateKey, MLKEM768PrivateKey]:
    seed = key.private_bytes()
    curve = X25519PrivateKey.from_private_bytes(derived(seed, ["x25519"]))
    return curve, MLKEM768PrivateKey.from_seed_bytes(derived(seed, ["ml-kem-768"], 64))


def secrets_of(earlier: RunKey, later: RunKey, ciphertext: bytes) -> tuple[bytes, bytes]:
    """x and k, as who has both private keys finds them."""
    one, other = X25519PublicKey.from_public_bytes(bytes.fromhex(earlier.public)[:32]), halves(later)
    return other[0].exchange(one), other[1].decapsulate(ciphertext)


def said_of(keys: dict[str, RunKey], pair: tuple[str, str]) -> list[Any]:
    prints = [hashlib.sha256(bytes.fromhex(keys[name].public)).hexdigest() for name in pair]
    return [RUN, *pair, *prints]


def opened(offer: bytes, secret: bytes, said: list[Any]) -> bytes:
    """What is in the envelope of an offer."""
    by = derived(secret, ["offer", *said, offer[:1088].hex()])
    own = hmac.digest(
        by, b"envelope" + json.dumps([["offer"], said[1]], separators=(",", ":")).encode() + b"\n", "sha256"
    )
    return AESGCM(own).decrypt(bytes(12), offer[1088:], b'["offer"]\n')


def check_hybrid(keys: dict[str, RunKey]) -> None:
    """The fence: what is offered is open to who has both secrets, and a key of a pair follows from it and from x."""
    pairs, publics = agreed(keys), publics_of(keys)
    for at, other in itertools.combinations(range(len(keys)), 2):
        one, two = list(keys)[at], list(keys)[other]
        offer = pairs[one].offers(publics)[other - at - 1].tobytes()
        x, k = secrets_of(keys[one], keys[two], offer[:1088])
        said = said_of(keys, (one, two))
        s = derived(keys[one].private_bytes(), ["own", "secret", *said])
        assert opened(offer, x + k, said) == s
        assert pairs[one][two] == pairs[two][one] == derived(x + s, ["pair", *said])


def test_a_pair_key_is_made_of_both_secrets_and_of_all_that_is_public() -> None:
    check_hybrid(some_keys())


def no_lattice(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = pair_keys._encapsulated
    monkeypatch.setattr(pair_keys, "_encapsulated", lambda public: (bytes(32), whole(public)[1]))
    monkeypatch.setattr(RunKey, "decapsulated", lambda *_: bytes(32))


def left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = pair_keys._encapsulated
    monkeypatch.setattr(pair_keys, "_encapsulated", lambda public: (b"", whole(public)[1]))
    monkeypatch.setattr(RunKey, "decapsulated", lambda *_: b"")


def no_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunKey, "exchanged", lambda *_: bytes(32))


def curve_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunKey, "exchanged", lambda *_: b"")


def nothing_public(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PairKeys, "_pair", lambda self, other: sorted((self._own, other)))


PLANTED = [no_lattice, left_out, no_curve, curve_left_out, nothing_public]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_secret_that_is_left_out_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted faults: both ends still agree, and the fence fails."""
    plant(monkeypatch)
    agreed(some_keys())
    with pytest.raises((AssertionError, InvalidTag)):
        check_hybrid(some_keys())


def recovered(keys: dict[str, RunKey], broken: str) -> bool:
    """Whether who recorded all messages, and breaks one of the two problems, reads a party's masked words."""
    pairs, publics = agreed(keys), publics_of(keys)
    values, label = np.arange(4, dtype=np.uint64), ["sum", "gradient", 0, 0, list(keys), ""]
    sent = values + masks(pairs["a"], "a", list(keys), label, 4)
    guessed = {}
    for place, other in enumerate(list(keys)[1:]):
        offer, said = pairs["a"].offers(publics)[place].tobytes(), said_of(keys, ("a", other))
        x, k = secrets_of(keys["a"], keys[other], offer[:1088])
        x, k = (x, bytes(32)) if broken == "x25519" else (bytes(32), k)  # of the other one it knows nothing
        try:
            guessed[other] = derived(x + opened(offer, x + k, said), ["pair", *said])
        except InvalidTag:
            return False
    return bool(np.array_equal(sent - masks(guessed, "a", list(keys), label, 4), values))


@pytest.mark.parametrize(("broken", "plant"), [("x25519", no_lattice), ("ml-kem", no_curve)])
def test_recorded_messages_open_to_nobody_who_breaks_one_of_the_two(
    broken: str, plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the other secret left out, the planted fault, the same attack reads them."""
    assert not recovered(some_keys(), broken)
    plant(monkeypatch)
    assert recovered(some_keys(), broken)


# For given seeds and a given ciphertext. A change of these numbers is a change of the format of keys.

PRINTS = {
    "a": "4011eaa47e26e7fab131d5fc9e2c97d7181ca934997273fa439e3a89932e6960",
    "b": "fc547c15dcb7cdc33b4ca4c99f9f50082a005472c82a0f8592058d88600ecbf4",
}
OFFERED = "7ab43459f18c5cbed99875753b434210942381e17a28a5151cbd929b0504256c1324d17fed0675cc4d51875717e5f195"
KEY = "2c8101199bc621505083220d56c15f29d611559a988762fb215999fd67ad12d3"


def test_known_seeds_and_a_known_ciphertext_give_a_known_key() -> None:
    """Any 1088 bytes are a ciphertext: of one that nobody made the secret follows from the seed."""
    keys = some_keys(("a", "b"))
    assert dict(prints_of(keys)) == PRINTS
    offer = hashlib.shake_256(b"ciphertext").digest(1088) + bytes.fromhex(OFFERED)
    later = PairKeys(keys["b"], *members_of(prints_of(keys), "b"), RUN)
    later.agree(publics_of(keys), packed_rows([offer], OFFER))
    assert later["a"].hex() == KEY == agreed(keys)["a"]["b"].hex()


# Which modules may make keys at all.

MADE_IN = {
    "x25519": {"secure/pair_keys.py", "secure/workers.py"},  # the second multiplies points of an alignment
    "mlkem": {"secure/pair_keys.py"},
    "hkdf": {"secure/pair_keys.py"},
}


def makers(sources: dict[str, str]) -> dict[str, set[str]]:
    """By primitive, the modules that import it; and by method of a run key, those that call it."""
    found: dict[str, set[str]] = {name: set() for name in (*MADE_IN, "exchanged", "decapsulated")}
    for path, text in sources.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                named = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                named += [alias.name for alias in node.names]
                for primitive in MADE_IN:
                    if any(primitive in name.lower() for name in named):
                        found[primitive].add(path)
            elif isinstance(node, ast.Attribute) and node.attr in ("exchanged", "decapsulated"):
                found[node.attr].add(path)
    return found


def check_makers(sources: dict[str, str]) -> None:
    one = {"secure/pair_keys.py"}
    assert makers(sources) == MADE_IN | {"exchanged": one, "decapsulated": one}


@pytest.mark.slow
def test_one_module_makes_keys_that_two_ends_share() -> None:
    sources = {str(path.relative_to(SOURCE)): path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")}
    check_makers(sources)
    for planted in (
        "from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey",
        "from cryptography.hazmat.primitives.asymmetric import x25519",
        "import cryptography.hazmat.primitives.kdf.hkdf",
        "secret = key.exchanged(public)",
    ):
        with pytest.raises(AssertionError):
            check_makers(sources | {"federation/envelopes.py": planted})


# What both ends agree on, and when.


def test_keys_are_of_one_run_and_of_one_pair_and_the_same_in_every_copy() -> None:
    """Each offer has a ciphertext of its own, and all of them the same secret."""
    keys = some_keys()
    first, again, other = agreed(keys), agreed(keys), agreed(keys, ["another"])
    assert {name: dict(pairs) for name, pairs in first.items()} == {name: dict(pairs) for name, pairs in again.items()}
    found = [runs[one][two] for runs in (first, other) for one, two in itertools.combinations(NAMES, 2)]
    assert len(set(found)) == len(found) == 6
    assert {len(key) for key in found} == {32}
    assert list(first["b"]) == ["a", "c"]
    offers = [pairs["a"].offers(publics_of(keys)) for pairs in (first, first, again)]
    assert len({offer.tobytes() for offer in offers}) == 3
    for secret in (keys["a"], first["a"]):
        with pytest.raises(RefusedError, match="neither copied nor pickled"):
            pickle.dumps(secret)
    with pytest.raises(RefusedError, match="the public key of a is not"):
        PairKeys(RunKey(), *members_of(prints_of(keys), "a"), RUN).offers(publics_of(keys))
    with pytest.raises(ValueError, match="32 bytes"):
        RunKey(bytes(31))


def test_a_key_is_there_once_it_is_agreed_on_and_stays() -> None:
    keys = some_keys()
    publics = publics_of(keys)
    pairs = {name: PairKeys(key, *members_of(prints_of(keys), name), RUN) for name, key in keys.items()}
    sent = crossed_offers(NAMES, {name: {OFFERS: own.offers(publics)} for name, own in pairs.items()})["b"][OFFERS]
    with pytest.raises(RefusedError, match="b and a have not agreed"):
        pairs["b"]["a"]
    pairs["b"].agree(publics, sent)
    restarted = PairKeys(keys["b"], *members_of(prints_of(keys), "b"), RUN)
    restarted.restore(json.loads(json.dumps(pairs["b"].state)))
    assert dict(restarted) == dict(pairs["b"])
    restarted.agree(None, None)  # also by a message without offers
    assert dict(restarted) == dict(pairs["b"])


def altered(change: Callable[[Any], Any]) -> Callable[[Any, Any], tuple[Any, Any]]:
    return lambda publics, offers: (publics, change(offers.copy()))


def flipped(offers: Any, place: int) -> Any:
    offers[0, place] ^= 1
    return offers


BAD: dict[str, tuple[Callable[[Any, Any], tuple[Any, Any]], str]] = {
    "ciphertext": (altered(lambda offers: flipped(offers, 5)), "was altered"),
    "envelope": (altered(lambda offers: flipped(offers, -1)), "was altered"),
    "of another sender": (altered(lambda offers: offers[::-1]), "was altered"),
    "one missing": (altered(lambda offers: offers[:1]), "lacks 2 public keys or offers"),
    "none": (altered(lambda _: None), "lacks 2 public keys or offers"),
    "floats": (altered(lambda offers: offers.astype(float)), "lacks 2 public keys or offers"),
    "another public key": (lambda publics, offers: (publics[[1, 0, 2]], offers), "the public key of a is not"),
    "no public keys": (lambda _, offers: (None, offers), "lacks 3 public keys"),
}


@pytest.mark.parametrize(("change", "reason"), BAD.values(), ids=BAD)
def test_what_is_no_offer_of_the_pair_is_refused(change: Callable[[Any, Any], tuple[Any, Any]], reason: str) -> None:
    keys = some_keys()
    publics = publics_of(keys)
    pairs = {name: PairKeys(key, *members_of(prints_of(keys), name), RUN) for name, key in keys.items()}
    sent = crossed_offers(NAMES, {name: {OFFERS: own.offers(publics)} for name, own in pairs.items()})["c"][OFFERS]
    with pytest.raises(RefusedError, match=reason):
        pairs["c"].agree(*change(publics, sent))
    assert not pairs["c"].agreed
    pairs["c"].agree(publics, sent)
    assert pairs["c"].agreed


@pytest.mark.parametrize(
    "public",
    [bytes(32) + bytes(1184), (1).to_bytes(32, "little") + bytes(1184), bytes([9]) + bytes(31) + b"\xff" * 1184],
    ids=["zero", "small order", "no lattice"],
)
def test_a_public_key_that_is_none_is_refused(public: bytes) -> None:
    """Those of small order share no secret by X25519; entries of a lattice key are below 3329."""
    keys = some_keys(("a", "b"))
    members = [prints_of(keys)[0], ("b", fingerprint_of(public.hex()))]
    publics = publics_of(keys)
    publics[1] = np.frombuffer(public, dtype="<i8")
    with pytest.raises(RefusedError, match="a public key of the run is none"):
        PairKeys(keys["a"], *members_of(members, "a"), RUN).offers(publics)


def test_offers_that_are_none_are_not_passed_on() -> None:
    good = np.zeros((1, OFFER // 8), dtype=np.int64)
    crossed_offers(("a", "b"), {"a": {OFFERS: good}, "b": {OFFERS: good[:0]}})
    for bad in ({}, {OFFERS: good[:0]}, {OFFERS: good[:, 1:]}, {OFFERS: good.astype(float)}):
        with pytest.raises(WireError, match="'a'"):
            crossed_offers(("a", "b"), {"a": bad, "b": {OFFERS: good[:0]}})


# A party: what it keeps, and that it charges nothing before.


class Run:
    """Three parties by rows with ledgers, and whatever a coordinator says to them."""

    def __init__(self, folder: Path) -> None:
        plan, _ = made(3)
        self.names, self.identities = plan.names, local_identities(plan.names)
        self.accounts = {
            name: sv.Ledger.create(folder / f"{name}.db").open("x", epsilon=9.0, delta=1e-4) for name in plan.names
        }
        self.parties = {name: self.party(name) for name in plan.names}
        publics = {name: party.keys.new() for name, party in self.parties.items()}
        self.publics = packed_rows([bytes.fromhex(public) for public in publics.values()], PUBLIC)
        prints = tuple((name, fingerprint_of(public)) for name, public in publics.items())
        self.plan = plan.model_copy(update={"keys": prints})

    def party(self, name: str) -> Party:
        """Also one that was stopped and started again."""
        rows = data_of(self.names.index(name))
        found = Party(name, *rows, account=self.accounts[name], policy=sv.Policy(secure=True))
        found.identify(self.identities[name])
        return found

    def said(self, name: str, query: str, number: int = 0, **arrays: Any) -> Frame:
        text = "" if query == "pair" else self.plan.to_json()
        told = {PUBLIC_KEYS: self.publics} | arrays if query == "pair" else {}
        frame = Frame("plan", 1, self.plan.digest, number, query, told, text)
        return decode(self.parties[name].handle(encode(frame)).data)

    def offers(self) -> dict[str, dict[str, Any]]:
        """For each party those of all earlier ones."""
        return crossed_offers(self.names, {name: self.said(name, "pair").arrays for name in self.names})


def test_a_plan_is_not_charged_before_its_members_have_agreed_on_keys(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert run.said("p00", "pair").kind == "unknown-plan"
    for name in run.names:
        assert run.said(name, "check").kind == "accept"
    each = run.offers()
    for name in run.names:
        assert "has not agreed" in run.said(name, "").text
        assert run.said(name, "pair", 1, **each[name]).kind == "accept"
        assert run.said(name, "").kind == "accept"


def test_a_party_that_is_stopped_at_any_moment_goes_on_with_the_same_keys(tmp_path: Path) -> None:
    """Killed after it checked the plan, after its offers left, after it agreed, and after it charged."""
    run = Run(tmp_path)

    def restarted() -> None:
        run.parties = {name: run.party(name) for name in run.names}
        for name in run.names:
            assert run.said(name, "check").kind == "accept"

    for name in run.names:
        assert run.said(name, "check").kind == "accept"
    restarted()
    first = run.offers()
    restarted()
    run.offers()  # others, which are not passed on
    for name in run.names:
        assert run.said(name, "pair", 1, **first[name]).kind == "accept"
    keys = {name: dict(run.parties[name].keys._pairs[run.plan.digest][1]) for name in run.names}
    assert all(keys[one][two] == keys[two][one] for one, two in itertools.combinations(run.names, 2))
    for query in ("check", ""):
        restarted()
        for name in run.names:
            assert run.said(name, query).kind == "accept"
            assert dict(run.parties[name].keys._pairs[run.plan.digest][1]) == keys[name]


def test_a_secret_that_is_drawn_anew_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: with a secret that is no function of the run key, copies of a party have other keys."""
    keys = some_keys()
    monkeypatch.setattr(PairKeys, "_secret", lambda *_: secrets.token_bytes(32))
    with pytest.raises(AssertionError):
        check_hybrid(keys)


class Tapped(InProcess):
    """A wire whose frames are kept; a party may be stopped and started again before one of them."""

    def __init__(self, parties: Any) -> None:
        super().__init__(parties)
        self.frames: list[tuple[str, Frame, Frame]] = []

    def exchange(self, requests: Any) -> Any:
        found = super().exchange(requests)
        self.frames += [(name, decode(requests[name]), decode(data)) for name, data in found.items()]
        return found


@pytest.mark.slow
def test_a_fit_by_rows_opens_what_a_restarted_party_masks(tmp_path: Path) -> None:
    """A party is stopped after its offers left, and a new one in its place takes those of the others."""
    run, stopped = Run(tmp_path), []

    class Restarting(Tapped):
        def exchange(self, requests: Any) -> Any:
            frame = decode(next(iter(requests.values())))
            if (frame.kind, frame.query, frame.round) == ("plan", "pair", 1) and not stopped:
                stopped.append("p01")
                self._endpoints["p01"] = run.party("p01")
            return super().exchange(requests)

    wire = Restarting(list(run.parties.values()))
    for name in run.names:
        run.identities[name] = wire._endpoints[name].identity  # type: ignore[attr-defined]
    federation = sv.Federation.connect(wire, split="rows", sums="secure")
    model = sv.PrivateLogisticRegression(epsilon=5.0, delta=1e-5, row_norm=1.0, classes=(0, 1))
    fitted = model.fit(federation)
    assert stopped
    assert np.isfinite(fitted.coef_).all()
    offers = [reply.arrays[OFFERS].shape for _, said, reply in wire.frames if OFFERS in reply.arrays]
    assert sorted(offers) == [(0, OFFER // 8), (1, OFFER // 8), (2, OFFER // 8)]
    assert not list(tmp_path.glob("*.secure/*"))  # the run is over, and so are its keys
