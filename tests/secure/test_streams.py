"""Keys, streams, envelopes: what two ends share, what cancels, and what is refused."""

from __future__ import annotations

import hashlib
import hmac
import itertools
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from sottovoce.errors import RefusedError
from sottovoce.secure import streams
from sottovoce.secure.streams import hash_of, masks, open_envelope, seal_envelope, stream

DIGEST = bytes(range(32))
KEY = bytes(range(32, 64))
LABEL = ["sum", "gradient", 3, 0, ["a", "b"], "00"]


def test_a_stream_is_aes_in_counter_mode_under_a_key_of_its_label() -> None:
    written = b'["sum","gradient",3,0,["a","b"],"00"]\n'
    own = hmac.new(KEY, b"stream" + written, hashlib.sha256).digest()
    data = Cipher(algorithms.AES(own), modes.CTR(bytes(16))).encryptor().update(bytes(80))
    assert stream(KEY, LABEL, 10).tobytes() == data
    assert stream(KEY, LABEL, 3).tolist() == stream(KEY, LABEL, 10)[:3].tolist()


def test_other_labels_are_other_streams() -> None:
    labels: list[list[Any]] = [
        LABEL,
        [*LABEL[:3], 1, *LABEL[4:]],
        [*LABEL[:4], ["a"], "00"],
        [*LABEL[:4], ["a,b"], "00"],
        [*LABEL[:4], ['a","b'], "00"],
        [*LABEL[:5], "01"],
        ["sum", "gradient", "3", 0, ["a", "b"], "00"],
    ]
    assert len({stream(KEY, label, 4).tobytes() for label in labels}) == len(labels)
    assert len({stream(key, LABEL, 4).tobytes() for key in (KEY, KEY[::-1], bytes(32))}) == 3


@pytest.mark.parametrize("parties", [2, 3, 8])
def test_masks_cancel_over_the_roster_and_over_nothing_less(parties: int) -> None:
    names = [f"p{number}" for number in range(parties)]
    keys: dict[str, dict[str, bytes]] = {name: {} for name in names}
    for one, other in itertools.combinations(names, 2):
        keys[one][other] = keys[other][one] = hashlib.sha256(f"{one} {other}".encode()).digest()
    each = [masks(keys[name], name, names, LABEL, 5) for name in names]
    assert not np.sum(each, axis=0).any()
    for size in range(1, parties):
        for some in itertools.combinations(each, size):
            assert np.all(np.sum(some, axis=0) != 0)  # by chance with 5 x 2^-64
    smaller = [masks(keys[name], name, names[1:], LABEL, 5) for name in names[1:]]
    assert not np.sum(smaller, axis=0).any()


def opens(data: bytes, label: list[Any], sender: str, key: bytes = KEY) -> bool:
    try:
        return open_envelope(key, label, sender, data) == b"sixteen bytes..."
    except RefusedError as error:
        return str(error) != "a secure message was altered, or is of another sender, round or run."


def test_a_box_that_was_altered_cut_replayed_or_swapped_is_refused() -> None:
    sent = seal_envelope(KEY, LABEL, "a", b"sixteen bytes...")
    assert opens(sent, LABEL, "a")
    assert len(sent) == 16 + 16
    altered = [sent[:k] + bytes([sent[k] ^ 1]) + sent[k + 1 :] for k in range(len(sent))]
    cut = [sent[:-1], sent[1:], sent + b"\0", b"", sent[:15]]
    assert not any(opens(data, LABEL, "a") for data in altered + cut)
    assert not opens(sent, [*LABEL[:2], 4, *LABEL[3:]], "a")  # of another round
    assert not opens(sent, LABEL, "b")
    assert not opens(sent, LABEL, "a", KEY[::-1])


def test_without_its_label_a_box_could_be_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault that the test above is there for."""
    monkeypatch.setattr(streams, "write_label", lambda _: b"")
    assert opens(seal_envelope(KEY, LABEL, "a", b"sixteen bytes..."), ["another"], "b")


def test_what_was_asked_is_hashed_by_name_type_shape_and_value() -> None:
    array = np.arange(6.0)
    said: list[dict[str, Any]] = [
        {},
        {"w": array},
        {"v": array},
        {"w": array.reshape(2, 3)},
        {"w": array.reshape(3, 2)},
        {"w": array.astype(np.int64)},
        {"w": -array},
        {"w": array, "v": array},
    ]
    assert len({hash_of(arrays) for arrays in said}) == len(said)
    assert hash_of({"a": array, "b": array * 2}) == hash_of({"b": array * 2, "a": array})
